"""The only home of the operating system: clocks, randomness, threads, files and object stores, behind the ports."""
