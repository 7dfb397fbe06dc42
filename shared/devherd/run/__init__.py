"""devherd in the foreground: a private instance of the same processes, in a folder, as an ordinary user."""
