//go:build !fault

package service

import "waitlist.internal/libs/kafka"

// The faults that a build with the tag fault has. Releases have none.

func (r *Runtime) breakServer() {}

func (r *Runtime) breakConsumer(*kafka.ConsumerConfig) {}
