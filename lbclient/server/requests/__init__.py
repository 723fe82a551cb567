"""From a method's name to the end of its handler."""
