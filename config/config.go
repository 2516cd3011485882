// Package config embeds what the manifests of this folder say about a spoke, so
// that the hub checks for the very rights that admins grant.
package config

import _ "embed"

// SpokeRole is the generated ClusterRole with what the hub does in the
// namespaces of a spoke. It can be granted for some of them alone.
//
//go:embed rbac/spoke/role.yaml
var SpokeRole []byte

// SpokeIdentityRole is the generated ClusterRole with what the hub must know of
// every spoke as a whole.
//
//go:embed rbac/spoke/identity_role.yaml
var SpokeIdentityRole []byte
