package devservers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// fetchedMajor is the major version that fetchPostgres downloads.
const fetchedMajor = 18

// fetchPostgres downloads the Postgres programs into dist unless they are there,
// and returns their location.
func fetchPostgres(dist string) (installation, error) {
	dist, err := filepath.Abs(dist)
	if err != nil {
		return installation{}, fmt.Errorf("resolve %s: %w", dist, err)
	}
	programs := filepath.Join(dist, fmt.Sprint(fetchedMajor))
	found := installation{filepath.Join(programs, "bin"), fetchedMajor}
	if complete(programs) {
		return found, nil
	}
	if err := os.RemoveAll(programs); err != nil {
		return installation{}, fmt.Errorf("remove an unfinished download: %w", err)
	}
	port, err := FreePort()
	if err != nil {
		return installation{}, err
	}
	// The library also starts a server, which fails for root. Only the programs
	// that it downloads are needed.
	throwaway := filepath.Join(dist, "throwaway")
	server := embedded.NewDatabase(embedded.DefaultConfig().Version(embedded.V18).Port(uint32(port)).Logger(io.Discard).
		CachePath(filepath.Join(dist, "cache")).BinariesPath(programs).RuntimePath(throwaway))
	err = server.Start()
	if err == nil {
		err = server.Stop()
	}
	if err := os.RemoveAll(throwaway); err != nil {
		return installation{}, fmt.Errorf("remove the library's server: %w", err)
	}
	if _, missing := os.Stat(filepath.Join(programs, "bin", "initdb")); missing != nil {
		return installation{}, errors.Join(ErrNoPostgres, fmt.Errorf("download Postgres: %w", err))
	}
	if err := os.WriteFile(filepath.Join(programs, completeMark), nil, 0o600); err != nil {
		return installation{}, fmt.Errorf("mark the download as complete: %w", err)
	}
	return found, nil
}

// completeMark is a file that exists once the download is unpacked.
const completeMark = "complete"

func complete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, completeMark))
	return err == nil
}
