"""What every part of the store stands on: settings, errors, drafts, results, watermarks."""
