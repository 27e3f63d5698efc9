"""What the service is compared with. Each yardstick runs in a fresh process of its own."""
