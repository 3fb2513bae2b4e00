"""The files of messages that wait for their time, in the format of a Java broker."""
