#!/bin/sh
# One step of work for lead.sh: prints a line. Yours would write something, and send the token with it.
echo "works $PRIMACY_TOKEN"
sleep 0.1
