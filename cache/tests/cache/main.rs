//! The cache against real stores: in memory, in a directory, and one that fails on command.
