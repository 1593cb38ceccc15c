package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Registry is an image registry in this process for the images that ko builds.
type Registry struct {
	// Address is the registry's host:port.
	Address string
	server  *http.Server
}

// StartRegistry serves a registry that contains only a base image, until Stop.
func StartRegistry(ctx context.Context) (*Registry, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the registry: %w", err)
	}
	quiet := log.New(io.Discard, "", 0)
	r := &Registry{Address: l.Addr().String(), server: &http.Server{
		Handler: registry.New(registry.Logger(quiet)), ReadHeaderTimeout: 10 * time.Second,
	}}
	go func() { _ = r.server.Serve(l) }()
	if err := r.pushBase(ctx); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// Stop stops the registry and discards its images.
func (r *Registry) Stop() error { return r.server.Close() }

// Base returns the base image for ko. Releases use one from the internet; this one has what matters of it: an unprivileged
// user and both platforms.
func (r *Registry) Base() string { return r.Address + "/base:nonroot" }

func (r *Registry) pushBase(ctx context.Context) error {
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	for path, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n",
		"etc/group":  "root:x:0:\nnonroot:x:65532:\n",
	} {
		if err := archive.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		if _, err := io.WriteString(archive, text); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := mutate.AppendLayers(empty.Image, layer)
		if err != nil {
			return err
		}
		config, err := img.ConfigFile()
		if err != nil {
			return err
		}
		config.OS, config.Architecture = "linux", arch
		config.Config = v1.Config{User: "65532", WorkingDir: "/"}
		if img, err = mutate.ConfigFile(img, config); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	tag, err := name.NewTag(r.Base(), name.Insecure)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("push the base image: %w", err)
	}
	return nil
}
