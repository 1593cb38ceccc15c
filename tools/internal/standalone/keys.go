package standalone

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"waitlist.internal/libs/rpc"
)

// ServiceNames returns the services in the order in which they start.
func ServiceNames() []string {
	return []string{"account", "signup", "messaging", "admin-analytics", "billing", "notifier", "pages"}
}

// Keys reads the suite's secrets from dir and creates the missing ones. It returns
// shared, which maps each environment variable to its value, and seeds, which maps
// each service to its SERVICE_KEY. Each file holds one value, and only its owner can
// read it. Losing a file invalidates the sessions, links or stored secrets that were
// made with its key.
func Keys(dir string) (shared map[string]string, seeds map[string]string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("create the folder for the keys: %w", err)
	}
	shared, seeds = map[string]string{}, map[string]string{}
	today := time.Now().UTC().Format(time.DateOnly) // the services read the key's age from its id
	fresh := map[string]bool{}
	for variable, first := range map[string]string{"TOKEN_KEYS": today + "-k1:", "SEAL_KEYS": today + "-k1:", "ADDRESS_KEY": ""} {
		file := strings.ReplaceAll(strings.ToLower(variable), "_", "-")
		shared[variable], err = keep(filepath.Join(dir, file), func() (string, error) {
			fresh[variable] = true
			return first + random(), nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	// If the folder is older than this ring, links that TOKEN_KEYS signed must stay valid, and in a
	// cluster, old programs must accept new ones' links until somebody moves the new key to the front.
	shared["ACCOUNT_TOKEN_KEYS"], err = keep(filepath.Join(dir, "account-token-keys"), func() (string, error) {
		if fresh["TOKEN_KEYS"] {
			return today + "-a1:" + random(), nil
		}
		return shared["TOKEN_KEYS"] + "," + today + "-a1:" + random(), nil
	})
	if err != nil {
		return nil, nil, err
	}
	shared["JWT_KEYS"], err = keep(filepath.Join(dir, "jwt-keys"), func() (string, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return "", err
		}
		scalar, err := key.Bytes()
		return base64.StdEncoding.EncodeToString(scalar), err
	})
	if err != nil {
		return nil, nil, err
	}
	public := rpc.Keys{}
	for _, name := range ServiceNames() {
		seeds[name], err = keep(filepath.Join(dir, "service-"+name), func() (string, error) { return random(), nil })
		if err != nil {
			return nil, nil, err
		}
		seed, err := rpc.ParseSeed(seeds[name])
		if err != nil {
			return nil, nil, fmt.Errorf("parse the key of %s in %s: %w", name, dir, err)
		}
		public[name] = []ed25519.PublicKey{ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)}
	}
	shared["SERVICE_KEYS"] = public.String()
	return shared, seeds, nil
}

// random returns 32 random bytes in base64.
func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.StdEncoding.EncodeToString(b)
}

// keep returns the content of the file at path. If there is no file, keep writes one
// with the value that generate returns. The file appears whole or not at all, and it
// is on disk before keep returns.
func keep(path string, generate func() (string, error)) (string, error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read a key: %w", err)
	}
	value, err := generate()
	if err != nil {
		return "", fmt.Errorf("generate a key: %w", err)
	}
	if err := writeSynced(path, value+"\n"); err != nil {
		return "", fmt.Errorf("write a key: %w", err)
	}
	return value, nil
}

func writeSynced(path, content string) error {
	half := path + ".new"
	f, err := os.OpenFile(half, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(half, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
