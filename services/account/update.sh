#!/bin/sh
# Fetches the newest list of common passwords. Needs npm.
# Passwords of fewer than 8 bytes are refused anyway.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
npm pack --silent --pack-destination "$tmp" @zxcvbn-ts/language-common >/dev/null
tar -xzf "$tmp"/*.tgz -C "$tmp"
node -e 'for (const p of require(process.argv[1]).slice(0, 10000)) if (Buffer.byteLength(p) >= 8) console.log(p.toLowerCase())' \
	"$tmp/package/src/passwords.json" | LC_ALL=C sort -u >"$tmp/list"
# A changed file format must not leave the list empty.
[ "$(wc -l <"$tmp/list")" -gt 3000 ]
cp "$tmp/package/LICENSE.txt" LICENSE.common-passwords
cp "$tmp/list" common_passwords.txt
