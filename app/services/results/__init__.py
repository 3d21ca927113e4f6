"""What came out: reports, calibration, series, exports."""
