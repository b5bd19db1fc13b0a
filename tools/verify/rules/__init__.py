"""What this project asks of logs and submissions beyond the official checkers, one module for each subject."""
