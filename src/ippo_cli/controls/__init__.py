"""Control arms of a team: trains them seed by seed beside the team, and says which of them the team beats."""
