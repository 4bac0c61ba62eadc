"""What a user can say (`settings`), what one user said (`job`), and what we answer (`result`)."""
