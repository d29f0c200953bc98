# cmake --install: the four programs, the demo model, example configurations, units.
include(GNUInstallDirs)
install(TARGETS skein skein-node skein-coordinator skein-worker
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/models/tiny-v41
  DESTINATION ${CMAKE_INSTALL_DATADIR}/skein/models)
install(FILES deploy/config/api_keys.yaml deploy/config/one_node.yaml deploy/config/multi_node.yaml deploy/systemd/nftables.conf
  DESTINATION ${CMAKE_INSTALL_DATADIR}/skein/examples)
install(FILES deploy/systemd/skein.service deploy/systemd/skein-node.service
  deploy/systemd/skein-coordinator.service DESTINATION lib/systemd/system)
install(FILES deploy/systemd/skein.sysusers DESTINATION lib/sysusers.d RENAME skein.conf)
