//go:build !fault

package service

import "waitlist.internal/libs/kafka"

// Only a build with the tag fault has faults; releases have none.

func (r *Runtime) breakServer() {}

func (r *Runtime) breakConsumer(*kafka.ConsumerConfig) {}
