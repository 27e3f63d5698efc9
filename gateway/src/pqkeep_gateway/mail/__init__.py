"""Mail to people: what it says, and its delivery."""
