"""What hosts are trained on: tasks, data sets, splits and keyed streams."""
