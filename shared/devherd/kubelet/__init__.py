"""Everything that talks to the kubelet: sockets, servers, registration, PodResources and its checkpoint."""
