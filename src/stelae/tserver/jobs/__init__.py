"""What a server does for jobs that move much data: tickets for files, given out and taken back."""
