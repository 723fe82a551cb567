"""What a client does not send, as it would be refused: adaptive throttling."""
