"""What crosses processes: messages and their framing, requests and answers, the connection file."""
