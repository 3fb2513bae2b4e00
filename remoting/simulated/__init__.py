"""A simulated system under real programs: network, sockets, clocks and threads of one Trio run."""
