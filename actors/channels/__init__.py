"""Direct roads between children: each sends what it makes straight to those who need it."""
