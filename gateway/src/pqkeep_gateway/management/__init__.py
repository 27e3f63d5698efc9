"""What an operator's tools ask of a running gateway: is it alive, is it ready, what has it done."""
