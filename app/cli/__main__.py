"""``python -m app.cli``: the ``lockstep`` command where its script is not on the path."""

from app.cli.people import main

if __name__ == "__main__":
    main()
