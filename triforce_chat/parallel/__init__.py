"""One model on several processes: rank 0 talks to the user, the others repeat whatever it does."""
