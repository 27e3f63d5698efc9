"""What both processes and pqkeepd do when they start: read settings and secret files, set up logs."""
