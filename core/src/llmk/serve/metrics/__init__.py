"""What is measured of requests, and where the numbers go."""
