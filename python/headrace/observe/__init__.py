"""What people see of a running gateway."""
