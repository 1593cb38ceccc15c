#!/usr/bin/env bash
# Installs the database servers that `make run` starts if they are missing and the
# script runs as root on Debian or Ubuntu. Elsewhere it prints the missing packages;
# the suite then falls back to a stand-in or names the package in its error.
set -euo pipefail

missing=()
if [ -z "${POSTGRES_URL:-}" ] && ! command -v postgres >/dev/null && ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
	missing+=(postgresql)
fi
if [ -z "${REDIS_URL:-}" ] && ! command -v redis-server >/dev/null; then
	missing+=(redis-server)
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "installing ${missing[*]}"
	# Keep the packages from starting servers on the default ports.
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	fi
	export DEBIAN_FRONTEND=noninteractive
	if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }; then
		echo "could not install ${missing[*]}; continuing without them" >&2
	fi
else
	echo "not installed: ${missing[*]} (Debian, Ubuntu: sudo apt-get install ${missing[*]})" >&2
fi
