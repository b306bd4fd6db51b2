"""The agents of a pool: connections, who may connect, messages in and out, groups that form."""
