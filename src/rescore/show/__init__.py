"""What is shown to people: text, progress on a screen, curves and videos."""
