"""One class per JSON body, grouped by what the bodies are about."""
