"""Following the minimum as beta grows: the loop, its schedules, stability, how many centres."""
