"""What a notebook is given, checked, and what it chooses where it is given nothing."""
