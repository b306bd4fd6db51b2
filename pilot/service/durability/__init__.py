"""What survives the coordinator: its journal, restarts, measured curves; and what it leaves behind."""
