#!/usr/bin/env bash
# Installs the database servers that `make run` starts, where they are missing
# and this machine lets us: Debian or Ubuntu, as root. Elsewhere it only says
# what is missing; the suite then falls back or names the package itself.
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
	# The packages must not start servers of their own on the usual ports.
	[ -e /usr/sbin/policy-rc.d ] || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d && trap 'rm -f /usr/sbin/policy-rc.d' EXIT; }
	if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }; then
		echo "could not install ${missing[*]}; going on without" >&2
	fi
else
	echo "not installed: ${missing[*]} (Debian, Ubuntu: sudo apt-get install ${missing[*]})" >&2
fi
