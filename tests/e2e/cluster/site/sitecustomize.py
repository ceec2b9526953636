"""Gives each of the cluster's containers that are none a host name of its own, as an engine does."""

import os
import socket

if "HOSTNAME" in os.environ:
    socket.gethostname = lambda: os.environ["HOSTNAME"]
