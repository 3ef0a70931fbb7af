"""Programs that call agents at an OpenAI-compatible address (`task=program`)."""
