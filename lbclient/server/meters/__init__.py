"""What the machine tells: processors, memory, neighbours."""
