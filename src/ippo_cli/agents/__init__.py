"""Agents: each has an actor, a critic, a reference policy and learners."""
