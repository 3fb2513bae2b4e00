"""The metrics of a broker under RocketMQ's names, one file for each part of it."""
