"""Layer 2: what is trained. Actors, critics, and the small model that is made locally."""
