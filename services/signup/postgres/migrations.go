package postgres

import (
	"embed"
	"io/fs"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the schema's migrations in the form that pg.Migrate takes.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }
