package lab

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// images stores the files of pulled images.
type images struct {
	dir string
	mu  sync.Mutex
	// pulled has the images that are complete, by digest.
	pulled map[string]*image
}

// image is a pulled image.
type image struct {
	// files is the directory of its files.
	files  string
	config v1.Config
}

// pull returns the image that ref names. Only digests are accepted: a tag may change its meaning between two pods.
func (i *images) pull(ctx context.Context, ref string) (*image, error) {
	digest, err := name.NewDigest(ref, name.Insecure)
	if err != nil {
		return nil, fmt.Errorf("image %q must be named by digest: %w", ref, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if img := i.pulled[digest.DigestStr()]; img != nil {
		return img, nil
	}
	img, err := remote.Image(digest, remote.WithContext(ctx), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration of %s: %w", ref, err)
	}
	dir := filepath.Join(i.dir, strings.ReplaceAll(digest.DigestStr(), ":", "-"))
	if err := unpack(img, dir); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", ref, err)
	}
	done := &image{files: dir, config: file.Config}
	i.pulled[digest.DigestStr()] = done
	return done, nil
}

// unpack writes an image's files to dir. If several processes do so at once, the later ones find it done.
func unpack(img v1.Image, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	half, err := os.MkdirTemp(filepath.Dir(dir), "half-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(half) }() // already renamed on success
	if err := os.Chmod(half, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(half)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	content := mutate.Extract(img)
	defer func() { _ = content.Close() }()
	for archive := tar.NewReader(content); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		path := strings.TrimPrefix(filepath.Clean("/"+h.Name), "/")
		if path == "" {
			continue
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, path)
		case tar.TypeReg:
			err = errors.Join(root.MkdirAll(filepath.Dir(path), 0o755), writeFile(root, path, archive, os.FileMode(h.Mode).Perm()))
		}
		if err != nil {
			return err
		}
	}
	if err := os.Rename(half, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func writeFile(root *os.Root, path string, from io.Reader, mode os.FileMode) error {
	f, err := root.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// link creates the image's file tree in dir from hard links.
func (i *image) link(dir string) error {
	return filepath.WalkDir(i.files, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(i.files, path)
		if err != nil {
			return err
		}
		target := filepath.Join(dir, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return os.Link(path, target)
	})
}
