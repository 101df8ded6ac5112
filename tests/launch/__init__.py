import pathlib

stand_in_path = pathlib.Path(__file__).parent / "stand_in.py"
