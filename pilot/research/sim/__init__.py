"""The simulator: the core on a virtual clock, driven by a trace; metrics and reports of replays."""
